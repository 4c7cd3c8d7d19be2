//go:build tools

package integrations

import (
	_ "github.com/prometheus-operator/prometheus-operator/cmd/operator"
)
