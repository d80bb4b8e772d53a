import { batch } from './batches/batch.ts'
import { batches, results } from './batches/results.ts'
import { models, whoami } from './calls/account.ts'
import { chat } from './calls/chat.ts'
import { type Command, onlyArgument } from './commands/command.ts'
import { deadLetters, deliveries } from './commands/dead-letters.ts'
import { doctor } from './commands/doctor.ts'
import { drain, pause, pools, resume, workers } from './commands/fleet.ts'
import { cancel, followCommand, get, jobs, steps } from './commands/jobs.ts'
import { keys, projects } from './commands/keys.ts'
import { logs } from './commands/logs.ts'
import { redrive } from './commands/redrive.ts'
import { replay } from './commands/replay.ts'
import { research } from './commands/research.ts'
import { submit } from './commands/submit.ts'
import { usage } from './commands/usage.ts'
import { webhookSecrets } from './commands/webhook-secrets.ts'
import { EXIT, orList, usageError } from './text/output.ts'
import { top } from './top/top.ts'

interface CommandWords {
  readonly name: string
  readonly summary: string
  /** Fixed values of the first argument, such as `create` in `sluice keys create`. */
  readonly actions: readonly string[]
  readonly options: readonly string[]
}

const GLOBAL_OPTIONS = ['--url', '--key', '--json', '--output', '--help']

const SHELLS: Readonly<Record<string, (commands: readonly CommandWords[]) => string>> = {
  bash: bashScript,
  zsh: zshScript,
  fish: fishScript,
}

function completionOf(commands: Readonly<Record<string, Command>>): Command {
  const completion: Command = {
    summary: 'Print a shell completion script',
    help: `Usage: sluice completion bash
       sluice completion zsh
       sluice completion fish

Prints a completion script for commands, their actions and their options.

Examples:
  source <(sluice completion bash)      # in ~/.bashrc, for every new shell
  source <(sluice completion zsh)       # in ~/.zshrc, after compinit
  sluice completion fish > ~/.config/fish/completions/sluice.fish`,
    options: {},
    async run({ args, out }) {
      const shell = onlyArgument(args, 'SHELL')
      const script = Object.hasOwn(SHELLS, shell) ? SHELLS[shell] : undefined
      if (!script) throw usageError(`SHELL must be ${orList(Object.keys(SHELLS))}; got '${shell}'.`)
      await out.write(script(Object.entries({ ...commands, completion }).map(wordsOf)))
      return EXIT.ok
    },
  }
  return completion
}

function wordsOf([name, { summary, help, options }]: readonly [string, Command]): CommandWords {
  const usages = help.split('\n\n', 1)[0] ?? ''
  const actions = [...usages.matchAll(new RegExp(`sluice ${name} ([a-z]+)`, 'g'))].map(([, action = '']) => action)
  const own = Object.keys(options).map((option) => `--${option}`)
  return { name, summary, actions: [...new Set(actions)], options: [...own, ...GLOBAL_OPTIONS] }
}

function bashScript(commands: readonly CommandWords[]): string {
  const cases = commands.map(
    ({ name, actions, options }) => `    ${name}) words='${options.join(' ')}'; actions='${actions.join(' ')}' ;;`,
  )
  return `_sluice() {
  local current=\${COMP_WORDS[COMP_CWORD]} command= actions= words='${GLOBAL_OPTIONS.join(' ')}' at
  for ((at = 1; at < COMP_CWORD; at++)); do
    case \${COMP_WORDS[at]} in
      --url | --key | --output | -o) ((at++)) ;;
      -*) ;;
      *) command=\${COMP_WORDS[at]}; break ;;
    esac
  done
  case $command in
    '') actions='${commands.map(({ name }) => name).join(' ')}'; at=$COMP_CWORD ;;
${cases.join('\n')}
  esac
  COMPREPLY=()
  if [[ $current == -* ]]; then COMPREPLY=($(compgen -W "$words" -- "$current"))
  elif [[ -z $command ]] || ((COMP_CWORD == at + 1)); then COMPREPLY=($(compgen -W "$actions" -- "$current"))
  fi
}
complete -o default -F _sluice sluice
`
}

function zshScript(commands: readonly CommandWords[]): string {
  const listed = commands.map(({ name, summary }) => `    '${name}:${quoted(summary)}'`)
  const cases = commands.map(
    ({ name, actions, options }) => `    ${name}) options=(${options.join(' ')}); actions=(${actions.join(' ')}) ;;`,
  )
  return `#compdef sluice
_sluice() {
  local -a commands actions options
  local at=2
  commands=(
${listed.join('\n')}
  )
  options=(${GLOBAL_OPTIONS.join(' ')})
  while ((at < CURRENT)); do
    case $words[at] in
      --url | --key | --output | -o) ((at += 2)) ;;
      -*) ((at++)) ;;
      *) break ;;
    esac
  done
  ((at < CURRENT)) && case $words[at] in
${cases.join('\n')}
  esac
  if [[ $PREFIX == -* ]]; then compadd -- $options
  elif ((at == CURRENT)); then _describe command commands
  elif ((CURRENT == at + 1 && $#actions)); then compadd -- $actions
  else _files
  fi
}
compdef _sluice sluice
`
}

function fishScript(commands: readonly CommandWords[]): string {
  const lines = commands.flatMap(({ name, summary, actions, options }) => [
    `complete -c sluice -f -n 'test (count (__sluice_words)) = 0' -a ${name} -d '${quoted(summary)}'`,
    ...options.map((option) => `complete -c sluice -n '__sluice_after ${name}' -l ${option.slice(2)}`),
    ...actions.map((action) => `complete -c sluice -f -n '__sluice_at ${name}' -a ${action}`),
  ])
  return `function __sluice_words
  set -l skip no
  for word in (commandline -opc)[2..]
    if test $skip = yes
      set skip no
    else if contains -- $word --url --key --output -o
      set skip yes
    else if not string match -q -- '-*' $word
      echo $word
    end
  end
end
function __sluice_after
  set -l words (__sluice_words)
  test "$words[1]" = $argv[1]
end
function __sluice_at
  __sluice_after $argv[1]; and test (count (__sluice_words)) = 1
end
${lines.join('\n')}
`
}

function quoted(text: string): string {
  return text.replaceAll("'", '’')
}

/** Commands by the heading of their group in `sluice --help` and in the reference. */
const BASE_GROUPS = {
  'Calls and jobs': { chat, submit, research, follow: followCommand, get, cancel, jobs, logs, redrive, steps, replay },
  Batches: { batch, batches, results },
  'Models, keys and usage': { models, whoami, usage, keys, projects, 'webhook-secrets': webhookSecrets },
  'Operation of the service': {
    ...{ top, doctor, pools, workers, drain, pause, resume },
    ...{ deliveries, 'dead-letters': deadLetters },
  },
} satisfies Readonly<Record<string, Readonly<Record<string, Command>>>>

const BASE_COMMANDS: Readonly<Record<string, Command>> = Object.assign({}, ...Object.values(BASE_GROUPS))

export const COMMAND_GROUPS: Readonly<Record<string, Readonly<Record<string, Command>>>> = {
  ...BASE_GROUPS,
  Shell: { completion: completionOf(BASE_COMMANDS) },
}

export const COMMANDS: Readonly<Record<string, Command>> = Object.assign({}, ...Object.values(COMMAND_GROUPS))
