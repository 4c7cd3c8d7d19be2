//go:build tools

package kubescore

import (
	_ "github.com/zegl/kube-score/cmd/kube-score"
)
