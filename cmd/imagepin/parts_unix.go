//go:build unix

package main

import (
	"github.com/imagepin/imagepin/pkg/imagepin/node"
	"github.com/imagepin/imagepin/plugins/imagepin/cluster"
	"github.com/imagepin/imagepin/plugins/imagepin/fleet"
)

// parts are the parts of imagepin serve.
var parts = node.Parts{Cluster: cluster.Open, Fleet: fleet.Open}
