//go:build !no_cluster

package main

import _ "github.com/imagepin/imagepin/plugins/imagepin/cluster"
