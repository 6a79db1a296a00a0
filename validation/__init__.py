"""Is it true? Predicted against measured runs."""
