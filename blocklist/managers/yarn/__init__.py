"""YARN: node labels and resources by the ResourceManager's REST API, or the exclude file."""
