"""A real YARN on loopback: a ResourceManager and NodeManagers, from Maven's artefacts and PySpark's own jars."""
