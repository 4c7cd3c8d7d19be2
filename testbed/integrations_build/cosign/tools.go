//go:build tools

package cosign

import (
	_ "github.com/sigstore/cosign/v3/cmd/cosign"
)
