"""What must be done? Models, parallel layouts and the operations they make; no seconds."""
