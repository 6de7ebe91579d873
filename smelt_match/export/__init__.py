"""Tables, documents and sentences: how results leave the program."""
