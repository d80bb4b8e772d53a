import { execFileSync } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { COMMANDS } from '#services/cli/commands.ts'
import { formatHelp } from '#services/cli/text/output.ts'
import { sluice } from '../../support/processes/sluice.ts'

const WORDS = /[^\s\\]+/g
const names = Object.keys(COMMANDS)

describe('the help text', () => {
  it.each(names)('of %s fits into 80 columns, and no word is cut off', (name) => {
    const help = COMMANDS[name]?.help ?? ''
    const laidOut = formatHelp(help)
    expect(laidOut.split('\n').filter((line) => line.length > 80)).toEqual([])
    expect(laidOut.match(WORDS)).toEqual(help.match(WORDS))
  })

  it.each(names)(
    'of %s lists every option, and docs/reference/cli.md lists the command and its options',
    async (name) => {
      const page = await readFile('docs/reference/cli.md', 'utf8')
      const { help, options } = COMMANDS[name] ?? { help: '', options: {} }
      expect(page).toMatch(new RegExp(`^\\| .*\`${name}\\b`, 'm'))
      for (const option of Object.keys(options)) {
        expect(help).toMatch(new RegExp(`^ {2}--${option}\\b`, 'm'))
        expect(page).toMatch(new RegExp(`^\\| .*--${option}\\b`, 'm'))
      }
    },
  )

  it('breaks long examples into lines that a shell can run', () => {
    const laidOut = formatHelp(
      `Examples:\n  sluice submit --body '{"a":  "two blanks"}' --endpoint /v1/a/long/path/of/an/endpoint | jq .id`,
    )
    const { stdout } = bash(
      `sluice() { printf '%s\\n' "$@"; }; jq() { cat; }; ${laidOut.split('\n').slice(1).join('\n')}`,
    )
    expect(stdout.trim().split('\n')).toEqual([
      'submit',
      '--body',
      '{"a":  "two blanks"}',
      '--endpoint',
      '/v1/a/long/path/of/an/endpoint',
    ])
  })

  it('wraps the description of an option within the description column', () => {
    expect(formatHelp(`Options:\n  --name NAME  ${'word '.repeat(20).trim()}`)).toBe(
      `Options:\n  --name NAME  ${'word '.repeat(13).trim()}\n               ${'word '.repeat(7).trim()}`,
    )
  })
})

/**
 * For each shell: loads the completion script that `sluice` generated, and returns the completions that the shell offers for a command
 * line.
 */
const SHELLS: Readonly<Record<string, (script: string, line: string) => string[]>> = {
  /** bash: calls the completion function and returns its candidates. */
  bash: (script, line) => {
    const words = line.split(' ').map((word) => `'${word}'`)
    const called = `COMP_WORDS=(${words.join(' ')}); COMP_CWORD=${words.length - 1}; _sluice`
    return bash(`${script}\n${called}; printf '%s\n' "\${COMPREPLY[@]}"`).stdout.trim().split('\n')
  },
  /** zsh: types the line and Tab in a terminal. A single candidate is inserted into the line, so the last word is the completion. */
  zsh: (script, line) => {
    const typed = execFileSync('zsh', ['-f', '-c', TYPE_IN_ZSH, 'zsh', script, line], { encoding: 'utf8' })
    const last = typed.slice(typed.lastIndexOf('sluice ')).match(/^[\w-:/. ]+/)?.[0] ?? ''
    return [last.trim().split(' ').at(-1) ?? '']
  },
  /** fish: returns the output of `complete -C` without the descriptions of the candidates. */
  fish: (script, line) => {
    const lines = execFileSync('fish', ['-N', '-c', `${script}\ncomplete -C '${line}'`], { encoding: 'utf8' }).trim()
    return lines.split('\n').map((offered) => offered.split('\t')[0] ?? '')
  },
}

/**
 * Script that runs zsh in a pseudo terminal, types the command line and Tab, and prints the terminal output. The output is complete when
 * nothing was written for 2 s.
 */
const TYPE_IN_ZSH = `
zmodload zsh/zpty
print -r -- "$1" > $TMPPREFIX.sluice
zpty shell 'PS1= zsh -f -i'
zpty -w shell "autoload -Uz compinit; compinit -D -u; source $TMPPREFIX.sluice; print REA''DY"
until [[ $shown == *READY* ]]; do zpty -r shell more; shown+=$more; done
zpty -w -n shell "$2"$'\t'
quiet=0
while ((quiet < 20)); do
  if zpty -rt shell more; then shown+=$more; quiet=0; else ((quiet++)); sleep 0.1; fi
  [[ $shown != *READY*sluice* ]] && quiet=0
done
zpty -d shell
rm -f $TMPPREFIX.sluice
print -r -- "$shown"
`

describe.each(Object.entries(SHELLS))('the %s completion script', (shell, offered) => {
  const isHere = execFileSync('sh', ['-c', `command -v ${shell} || true`], { encoding: 'utf8' }) !== ''
  if (!isHere) process.stderr.write(`skipped: completion for ${shell}, which is not installed here\n`)

  it.skipIf(!isHere).each([
    ['sluice dead', 'dead-letters'],
    ['sluice --url http://127.0.0.1:1 dead', 'dead-letters'],
    ['sluice keys ro', 'rotate'],
    ['sluice --url http://127.0.0.1:1 keys ro', 'rotate'],
    ['sluice submit --pro', '--prompt'],
    ['sluice jobs --he', '--help'],
  ])('completes the last word of "%s" to the only word that matches', async (line, wanted) => {
    const { out } = await sluice(['completion', shell])
    expect(offered(out, line)).toEqual([wanted])
  })

  it.skipIf(!isHere || shell === 'zsh')(
    'offers every command after "sluice", but no second action after "sluice keys rotate"',
    async () => {
      const { out } = await sluice(['completion', shell])
      expect(offered(out, 'sluice ').toSorted()).toEqual(names.toSorted())
      expect(offered(out, 'sluice keys rotate ')).not.toContain('audit')
    },
  )
})

describe('sluice completion', () => {
  it.each(['zsh', 'fish'])('prints a script for %s that contains every command and option', async (shell) => {
    const { out } = await sluice(['completion', shell])
    for (const [name, { options }] of Object.entries(COMMANDS)) {
      expect(out).toContain(name)
      for (const option of Object.keys(options)) expect(out).toContain(option)
    }
  })

  it('rejects an unsupported shell with exit code 2, and lists the supported shells', async () => {
    const { code, err } = await sluice(['completion', 'tcsh'])
    expect(code).toBe(2)
    expect(err).toContain("SHELL must be bash, zsh or fish; got 'tcsh'.")
  })
})

function bash(script: string): { stdout: string } {
  return { stdout: execFileSync('bash', ['-c', script], { encoding: 'utf8' }) }
}
