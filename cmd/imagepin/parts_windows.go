package main

import "github.com/imagepin/imagepin/pkg/imagepin/node"

// parts are none: there is no imagepin serve.
var parts node.Parts
