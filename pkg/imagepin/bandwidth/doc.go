// Package bandwidth limits what the pulls of a node receive from registries, and says what they wait for.
package bandwidth
