//go:build tools

package jobset

import (
	_ "sigs.k8s.io/jobset"
)
