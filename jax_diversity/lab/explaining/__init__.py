"""Explain the gradients of a model by the characteristics of its sequences, and so predict what an order is worth."""
