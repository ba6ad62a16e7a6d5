"""Steps of preparation: each module contains one step, which keeps, edits or removes documents."""
