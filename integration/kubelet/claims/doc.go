// Package claims tests package cluster of imagepin with a real API server: its Node authorizer, its admission and its
// controllers.
package claims
