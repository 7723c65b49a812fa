//go:build unix

package serve

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	// What sets tracing up as containerd does, by the same variables of the
	// environment (OTEL_EXPORTER_OTLP_ENDPOINT and others).
	_ "github.com/containerd/containerd/v2/pkg/tracing/plugin"
)

const serviceNameVariable = "OTEL_SERVICE_NAME"

// startTracing exports spans as the environment configures it. on reports whether it is configured. stop exports the
// remaining spans.
func startTracing(ctx context.Context) (on bool, stop func(), _ error) {
	if os.Getenv(serviceNameVariable) == "" {
		if err := os.Setenv(serviceNameVariable, "imagepin"); err != nil {
			return false, nil, err
		}
	}
	stop = func() {}
	set := plugin.NewPluginSet()
	for _, r := range registry.Graph(func(r *plugin.Registration) bool { return !isTracing(r) }) {
		p := r.Init(plugin.NewContext(ctx, set, nil))
		if err := set.Add(p); err != nil {
			return false, nil, err
		}
		instance, err := p.Instance()
		if plugin.IsSkipPlugin(err) {
			return false, stop, nil
		}
		if err != nil {
			return false, nil, fmt.Errorf("tracing: %w", err)
		}
		if c, ok := instance.(io.Closer); ok {
			stop = func() {
				if err := c.Close(); err != nil {
					log.G(ctx).WithError(err).Warn("failed to export the last spans")
				}
			}
		}
	}
	return true, stop, nil
}

func isTracing(r *plugin.Registration) bool {
	return r.Type == plugins.TracingProcessorPlugin || r.Type == plugins.InternalPlugin && r.ID == "tracing"
}
