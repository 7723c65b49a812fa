package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/metadata"

	"github.com/imagepin/imagepin/integration/collector"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// call is the span of the traced call.
const call = "runtime.v1.ImageService/PullImage"

// layers are the layers that the image has beside those of its program, which are small.
var layers = []images.Random{{Files: 200, Size: 8 << 20, Seed: 1}, {Files: 20, Size: 4 << 20, Seed: 2}}

// bytesPerSecond is how fast the registry sends over each connection.
const bytesPerSecond = 100 << 20

// coldPull pulls an image on a new node, and returns the spans of the call by their IDs.
func coldPull(ctx context.Context) (spans map[string]*otlp.Span, err error) {
	c := collector.New()
	defer c.Close()
	reg, err := registry.New()
	if err != nil {
		return nil, err
	}
	defer reg.Close()
	host, err := reg.Limit(bytesPerSecond)
	if err != nil {
		return nil, err
	}
	index, err := images.AppIndex(ctx, images.Options{Random: layers}, images.HostPlatform())
	if err != nil {
		return nil, err
	}
	if _, err := reg.Push("team/app:1", index); err != nil {
		return nil, err
	}
	n, err := node.Start(ctx, node.Options{Mode: node.Plugin, NoPods: true, Env: c.Env()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	const trace = "00000000000000000000000000000001"
	traced := metadata.AppendToOutgoingContext(ctx, "traceparent", collector.Parent(trace))
	if _, err := n.Pull(traced, host+"/team/app:1", ""); err != nil {
		return nil, err
	}
	return ended(ctx, c, trace)
}

// ended waits for the span of the call, which is sent after the spans below it, and returns all spans.
func ended(ctx context.Context, c *collector.Collector, trace string) (map[string]*otlp.Span, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		spans := c.Spans(trace)
		for _, s := range spans {
			if s.GetName() == call {
				return spans, nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the span of %s was not sent: %w", call, context.Cause(ctx))
		}
	}
}
