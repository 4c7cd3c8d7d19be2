"""Where the control plane's programs come from: the machine, a cache, the official release, or a build."""
