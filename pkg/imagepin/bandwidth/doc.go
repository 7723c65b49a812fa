// Package bandwidth says what the pulls of a node receive from registries, and what they wait for.
package bandwidth
