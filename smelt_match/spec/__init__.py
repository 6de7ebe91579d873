"""Models and layouts as values; no tensor library is loaded here."""
