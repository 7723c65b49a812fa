package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const checkDescription = `Compares the records of images and pins with the content, snapshots and labels
on the node. It lists the differences, and the images of other tools that could
not be adopted, which are not differences. With --repair it repairs the
differences and lists the repairs: it unpacks or fetches again, or repairs records
and labels. An image for which none of these is possible now stays "damaged": pods
cannot use it, and the node tries again in the background. It is dropped only if its
registry no longer has it and no pin needs it.

By default, a check verifies that the files of content exist and have the right
size. With --deep it also reads all content and compares it with its digests, and
compares all files of snapshots with the layers of their images. An image whose
layers are not on the node is "unverified". You can interrupt a check.

Damaged files are replaced below exited containers. Where that cannot be,
--remove-exited removes these containers and stopped sandboxes, and lists them.
Their logs and last status are gone then.

Exit code:
  0  no differences, or all differences are repaired; images may be unverified
  1  there are differences

Examples:
  imagepin check
  imagepin check --repair
  imagepin check --deep --rate 20MiB`

func (a *app) checkCommand() *cli.Command {
	return &cli.Command{
		Name:        "check",
		Usage:       "Compare the records with the state of the node",
		Description: checkDescription,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "repair", Usage: "repair the differences"},
			&cli.BoolFlag{Name: "remove-exited", Usage: "with --repair, remove the exited containers that a repair needs removed"},
			&cli.BoolFlag{Name: "deep", Usage: "read all content and all files of snapshots"},
			&cli.StringFlag{Name: "rate", Value: "100MiB", Usage: "with --deep, read at most `SIZE` per second; 0 means no limit"},
		},
		Action: noArguments(a.check),
	}
}

func (a *app) check(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("remove-exited") && !cmd.Bool("repair") {
		return fmt.Errorf("--remove-exited requires --repair")
	}
	rate, err := rateOf(cmd)
	if err != nil {
		return err
	}
	check := func(c api.ControlClient, ctx context.Context, request *api.CheckRequest, opts ...grpc.CallOption) (*api.CheckResponse, error) {
		if !cmd.Bool("deep") {
			return c.Check(ctx, request, opts...)
		}
		return a.deepCheck(ctx, c, &api.DeepCheckRequest{Repair: request.GetRepair(), BytesPerSecond: rate, RemoveExited: request.GetRemoveExited()})
	}
	request := &api.CheckRequest{Repair: cmd.Bool("repair"), RemoveExited: cmd.Bool("remove-exited")}
	response, err := show(ctx, a, cmd, check, request, func(_ style, r *api.CheckResponse) error { return a.printCheck(r, request.GetRepair()) })
	if err != nil {
		return err
	}
	if n := countFindings(response); n.repaired < n.differ {
		return exitError(exitFailed)
	}
	return nil
}

// findingCounts are the numbers of findings.
type findingCounts struct{ differ, repaired, notAdopted, unverified int }

func countFindings(r *api.CheckResponse) (n findingCounts) {
	for _, f := range r.GetFindings() {
		switch {
		case f.GetNotAdopted():
			n.notAdopted++
			continue
		case f.GetUnverified():
			n.unverified++
			continue
		case f.GetRepaired():
			n.repaired++
		}
		n.differ++
	}
	return n
}

func (a *app) printCheck(r *api.CheckResponse, repair bool) error {
	for _, f := range r.GetFindings() {
		fmt.Fprintln(a.Out, printable(f.GetSubject()))
		if err := block(a.Out, "  ", findingFields(f, repair)...); err != nil {
			return err
		}
	}
	n := countFindings(r)
	others := ""
	if n.unverified > 0 {
		others = fmt.Sprintf(", %d unverified", n.unverified)
	}
	if n.notAdopted > 0 {
		others += fmt.Sprintf(", %d not adopted", n.notAdopted)
	}
	_, err := fmt.Fprintf(a.Out, "%d checked, %d differ, %d repaired%s\n", r.GetChecked(), n.differ, n.repaired, others)
	return err
}

func findingFields(f *api.Finding, repair bool) []field {
	fields := []field{{"Problem", f.GetProblem()}}
	for _, what := range f.GetRemoved() {
		fields = append(fields, field{"Removed", what})
	}
	switch {
	case f.GetNotAdopted():
		return []field{{"Note", f.GetProblem()}}
	case f.GetUnverified():
		return []field{{"Unverified", f.GetProblem()}}
	case f.GetRepaired() && f.GetError() != "":
		return append(fields, field{"Repaired", f.GetRepair()}, field{"Reason", firstLine(f.GetError())})
	case f.GetRepaired():
		return append(fields, field{"Repaired", f.GetRepair()})
	case f.GetError() != "" && (f.GetRepair() == "" || f.GetRepair() == "ignored"):
		return append(fields, field{"Not repaired", firstLine(f.GetError())})
	case f.GetError() != "":
		return append(fields, field{"Not repaired", f.GetRepair()}, field{"Reason", firstLine(f.GetError())})
	case repair:
		return append(fields, field{"Not repaired", f.GetRepair()})
	}
	return append(fields, field{"Repair would", f.GetRepair()})
}
