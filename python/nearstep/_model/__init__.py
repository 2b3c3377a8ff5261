"""The module and its parameters, as the engine's vector has them."""
