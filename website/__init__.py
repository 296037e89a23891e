"""The documentation site: what MkDocs needs beside docs/."""
