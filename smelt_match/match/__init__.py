"""The matched model: grid, floors, exact search, total order, certificate, and its independent verifier."""
