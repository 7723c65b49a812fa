package command

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// newRevisionFlag is the flag with the value of new_revision in the configuration of nodes, which the plugin cannot read.
const newRevisionFlag = "new-revision"

// The values of new_revision.
const (
	newRevisionNode    = "node"
	newRevisionResolve = "resolve"
)

// addNewRevision adds the flag and the completion of its values.
func addNewRevision(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, newRevisionFlag, newRevisionNode,
		`Must be "node" or "resolve": with --restart, the setting new_revision of the nodes. With "resolve", the pull policy IfNotPresent is allowed.`)
	values := cobra.FixedCompletions([]string{newRevisionNode, newRevisionResolve}, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(newRevisionFlag, values); err != nil {
		panic(err) // the flag is added above
	}
}

// checkNewRevision checks the value of the flag.
func checkNewRevision(cmd *cobra.Command, value string, restart bool) error {
	switch {
	case value != newRevisionNode && value != newRevisionResolve:
		return cmdutil.UsageErrorf(cmd, "--%s must be %q or %q, not %.50q", newRevisionFlag, newRevisionNode, newRevisionResolve, value)
	case !restart && cmd.Flags().Changed(newRevisionFlag):
		return cmdutil.UsageErrorf(cmd, "--%s needs --restart", newRevisionFlag)
	}
	return nil
}

// canResolve returns an error if a container whose image has an ImagePin has a pull policy with which a new revision does not
// resolve its tag: with Never, or on nodes with new_revision = "node", a pod can use the image that its node has. Then kubelet does
// not ask the node to resolve the tag, and the node claims the old digest again. newRevision is the value of new_revision.
func canResolve(t *target, newRevision string) error {
	if t.revision.Template == nil {
		return nil
	}
	for _, c := range workload.Containers(t.revision.Template) {
		parsed, err := workload.ParseImage(c.Image)
		if err != nil {
			continue
		}
		tagged, ok := parsed.Pinnable()
		if !ok || !slices.ContainsFunc(t.pins, func(p v1alpha1.ImagePin) bool { return p.Spec.Image == tagged }) {
			continue
		}
		if err := policyResolves(c.PullPolicy, newRevision); err != nil {
			return fmt.Errorf("%s: %s has the pull policy %s, %w", t.revision, c.Name, c.PullPolicy, err)
		}
	}
	return nil
}

// policyResolves returns an error that continues "has the pull policy". The API server sets an empty policy to Always or
// IfNotPresent.
func policyResolves(policy corev1.PullPolicy, newRevision string) error {
	switch {
	case policy == corev1.PullAlways:
		return nil
	case policy == corev1.PullNever:
		return errors.New("with which nodes pull nothing, so a new revision can run the old digest again: use Always, or refresh without --restart")
	case newRevision == newRevisionResolve:
		return nil
	}
	return fmt.Errorf("with which a new revision can run the old digest again: use Always, --%s=%s if all nodes have new_revision = %q, or refresh without --restart",
		newRevisionFlag, newRevisionResolve, newRevisionResolve)
}
