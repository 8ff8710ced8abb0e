"""How a scene is held and drawn."""
