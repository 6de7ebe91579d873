"""Hugging Face ``config.json`` files read as specs: every field that bears on a budget is used or refused."""
