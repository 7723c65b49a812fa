package policy_test

import (
	"fmt"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// The first rule that matches a reference treats it. Rules take empty fields from the defaults of the node.
func ExamplePolicy_Decide() {
	rules, err := policy.New(
		policy.Rule{Behavior: policy.Default, Consistency: policy.Node},
		[]policy.Rule{
			{Match: "registry.example/shop/**", Consistency: policy.Workload, AllowPodOverride: true},
			{Match: "registry.example/*:latest", Behavior: policy.Always, Consistency: policy.Off},
		},
		[]string{"pod-template-hash"})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := policy.Pod{
		Namespace: "shop", Labels: map[string]string{"pod-template-hash": "5f4d"},
		Annotations: map[string]string{policy.BehaviorAnnotation: "once"},
	}
	for _, ref := range []string{"registry.example/shop/cart:v7", "registry.example/tool:latest", "docker.io/library/redis:7"} {
		d, ignored := rules.Decide(ref, pod)
		fmt.Printf("%s: %s, scope %q, ignored %v\n", ref, d.Behavior, d.Scope, ignored)
	}
	// Output:
	// registry.example/shop/cart:v7: once, scope "workload/shop/pod-template-hash=5f4d", ignored []
	// registry.example/tool:latest: always, scope "", ignored [io.imagepin.pull-behavior]
	// docker.io/library/redis:7: default, scope "node", ignored [io.imagepin.pull-behavior]
}

// An invalid policy fails with the position of its rule.
func ExampleNew_invalid() {
	defaults := policy.Rule{Behavior: policy.Default, Consistency: policy.Off}
	_, err := policy.New(defaults, []policy.Rule{{Match: "registry.example/**", Behavior: "sometimes"}}, nil)
	fmt.Println(err)
	// Output:
	// rules[1].pull_behavior "sometimes": must be one of "default", "always", "once", "prefer-cached"
}

// A "*" matches no slash, and "**" matches any text. References are normalized, so globs name the registry.
func ExampleParseGlob() {
	for _, pattern := range []string{"registry.example/*:v1", "registry.example/**", "redis*"} {
		glob, err := policy.ParseGlob(pattern)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(glob.Match("registry.example/cart:v1"), glob.Match("registry.example/shop/cart:v1"))
	}
	// Output:
	// true false
	// true true
	// can never match: a reference begins with its registry, as in "docker.io/library/redis*"
}

func ExampleParseScope() {
	for _, text := range []string{"", "workload/shop/pod-template-hash=5f4d", "workload/shop/ReplicaSet/cart-5f4d/2b8a"} {
		scope, err := policy.ParseScope(text)
		if err != nil {
			fmt.Println(err)
			return
		}
		owner, ok := scope.Owner()
		fmt.Println(scope, scope.Namespace(), owner.Name, ok)
	}
	// Output:
	// node   false
	// workload/shop/pod-template-hash=5f4d shop  false
	// workload/shop/ReplicaSet/cart-5f4d/2b8a shop cart-5f4d true
}
