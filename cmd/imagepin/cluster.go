//go:build unix && !no_cluster

package main

import "github.com/imagepin/imagepin/plugins/imagepin/cluster"

func init() { parts.Cluster = cluster.Open }
