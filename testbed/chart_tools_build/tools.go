//go:build tools

package charttools

import (
	_ "github.com/norwoodj/helm-docs/cmd/helm-docs"
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "helm.sh/helm/v4/cmd/helm"
)
