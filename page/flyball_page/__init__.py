"""The status page: caps, nodes and jobs as they are observed, in a browser, read only."""
