//go:build tools

package kuberouter

import (
	_ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
)
