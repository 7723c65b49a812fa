// Command app is the entrypoint of the test images: it says which image it was started from, then waits to be told to stop.
//
// It is built for the node that runs the tests and put into images of every platform, so that a container of a "foreign"
// platform runs without emulation and still tells whose image it is. The facts come from two places, the image's config (as
// an environment variable) and the root filesystem (as a file), because a container may wrongly mix the two.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) > 1 {
		os.Exit(command(os.Args[1], os.Args[2:]))
	}
	fmt.Printf("%s rootfs=%s uid=%d\n", os.Getenv("IMAGEPIN_FACTS"), rootfs(), os.Getuid())
	<-stop
}

func rootfs() string {
	b, err := os.ReadFile("/facts")
	if err != nil {
		return "missing"
	}
	return strings.TrimSpace(string(b))
}

// command runs one of the small tools that tests start by arguments, and returns the exit code.
func command(name string, args []string) int {
	switch name {
	case "cat":
		for _, path := range args {
			b, err := os.ReadFile(path)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Println(strings.TrimRight(string(b), "\n"))
		}
	case "ls":
		for _, path := range args {
			entries, err := os.ReadDir(path)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			for _, e := range entries {
				fmt.Println(e.Name())
			}
		}
	case "write":
		if err := os.WriteFile(args[0], []byte(strings.Join(args[1:], " ")+"\n"), 0o644); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("written")
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			fmt.Println(err)
			return 2
		}
		fmt.Printf("exiting %d\n", code)
		return code
	default:
		fmt.Printf("unknown command %q\n", name)
		return 2
	}
	return 0
}
