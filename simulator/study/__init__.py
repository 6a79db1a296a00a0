"""What-if studies: many variants of one run, remembered as they come, as tables and pictures."""
