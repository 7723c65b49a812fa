package main

import "github.com/imagepin/imagepin/pkg/imagepin/node"

// parts are the parts of imagepin serve. As in containerd, the build tags no_cluster and no_fleet leave them out.
var parts node.Parts
