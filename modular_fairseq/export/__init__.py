"""Write trained models in the formats of other inference engines."""
