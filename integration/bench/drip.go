package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/imagepin/imagepin/integration/registry"
)

const (
	// dripRate is what the address of a dripping registry sends over each connection, in bytes in a second, after it has
	// dripped. Nothing waits for it.
	dripRate = 1 << 30
	// dripped is how many bytes of a blob are sent before it drips: all of a configuration, and the beginning of a layer.
	dripped = 16 << 10
)

// drip starts a pull of an image from another host, which sends one byte of each layer every 200 milliseconds. It returns
// when as many layers drip as the pull fetches at a time. end lets the host send the rest, and waits for the pull.
func (b *bench) drip(ctx context.Context, s *side, layers int) (end func() error, err error) {
	repository := fmt.Sprintf("drip%d", layers)
	ref, err := b.fresh(ctx, s, repository, tree{layers: layers, files: 4, size: b.sizes.layerSize, seed: 17})
	if err != nil {
		return nil, err
	}
	if b.other == "" {
		if b.other, err = b.reg.Limit(dripRate); err != nil {
			return nil, err
		}
	}
	if ref, err = b.from(b.other, ref); err != nil {
		return nil, err
	}
	blobs := []func(registry.Request) bool{registry.In(repository), registry.Is("GET", registry.Blob)}
	held := make(chan struct{})
	b.reg.SetFault(registry.FaultIf(registry.Fault{Hang: held, After: dripped, Drip: 200 * time.Millisecond}, blobs...))
	pulled := make(chan error, 1)
	go func() {
		_, err := s.Pull(ctx, ref, "")
		pulled <- err
	}()
	end = func() error {
		b.reg.SetFault(nil)
		close(held)
		return <-pulled
	}
	for b.reg.Count(blobs...) < 1+min(layers, maxConnections) { // with the configuration
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return nil, errors.Join(err, end())
		}
		select {
		case err := <-pulled:
			pulled <- err
			return nil, errors.Join(fmt.Errorf("the pull that drips has ended"), end())
		default:
		}
	}
	return end, nil
}

// from returns a reference of the registry with another address of it.
func (b *bench) from(host, ref string) (string, error) {
	name, ok := strings.CutPrefix(ref, b.reg.Ref(""))
	if !ok {
		return "", fmt.Errorf("%s is not a reference of the registry", ref)
	}
	return host + "/" + name, nil
}
