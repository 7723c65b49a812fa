//go:build unix

package main

import "github.com/imagepin/imagepin/plugins/imagepin/cluster"

// openCluster is the part of imagepin serve for pins in the Kubernetes API.
var openCluster = cluster.Open
