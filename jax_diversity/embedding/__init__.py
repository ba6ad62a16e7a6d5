"""Documents -> vectors in which similar topics are near each other; one method a file, `base` the contract of all."""
