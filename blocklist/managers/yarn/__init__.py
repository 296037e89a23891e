"""YARN: node labels and resources by the ResourceManager's REST API."""
