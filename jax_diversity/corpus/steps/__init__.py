"""Steps of preparation: each module holds one step, which keeps, edits or removes documents."""
