//go:build tools

package victoria_metrics

import (
	_ "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics"
)
