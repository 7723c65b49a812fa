package command

// otherWords are the commands for what ctr, crictl, nerdctl, docker and kubectl call in another way, by group ("" is
// imagepin itself). Without them, the most similar name would be suggested, as uninstall for unpin.
var otherWords = map[string]map[string]string{
	"": {
		"list": "images", "containers": "ps", "pods": "ps", "image": "images", "img": "images", "i": "images", "pins": "pin ls",
		"inspecti": "inspect", "show": "inspect", "get": "inspect", "describe": "inspect", "history": "inspect",
		"info": "status", "df": "du", "imagefsinfo": "du", "usage": "du", "explain": "resolve", "drift": "pin ls",
		"remove": "rm", "delete": "rm", "del": "rm", "untag": "rm", "gc": "prune", "clean": "prune", "cleanup": "prune",
		"unpin": "pin rm", "tag": "pin set", "set": "pin set", "undo": "pin undo", "update": "refresh", "upgrade": "refresh",
		"fetch": "pull", "repair": "check --repair", "fix": "check --repair", "fsck": "check", "verify": "check",
		"unlock": "lock rm", "import": "apply", "load": "apply", "export": "bundle", "save": "bundle", "watch": "events", "logs": "events",
	},
	"pin": {
		"get": "pin ls", "show": "pin ls", "add": "pin set", "create": "pin set", "update": "refresh", "move": "pin set",
		"delete": "pin rm", "del": "pin rm", "unset": "pin rm", "refresh": "refresh", "revert": "pin undo", "rollback": "pin undo",
	},
	"config": {
		"dump": "config default", "show": "config default", "print": "config default", "verify": "config check", "validate": "config check", "test": "config check",
	},
}
