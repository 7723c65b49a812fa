package main

import "github.com/imagepin/imagepin/pkg/imagepin/node"

// openCluster is nil: there is no imagepin serve.
var openCluster node.OpenCluster
