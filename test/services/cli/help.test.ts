import { execFileSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { COMMANDS } from '#services/cli/commands/commands.ts'
import { layOut } from '#services/cli/text/help.ts'
import { sluice } from '../../support/processes/sluice.ts'

const WORDS = /[^\s\\]+/g
const names = Object.keys(COMMANDS)

describe('help', () => {
  it.each(names)('of %s fits 80 columns, and loses no word', (name) => {
    const help = COMMANDS[name]?.help ?? ''
    const laidOut = layOut(help)
    expect(laidOut.split('\n').filter((line) => line.length > 80)).toEqual([])
    expect(laidOut.match(WORDS)).toEqual(help.match(WORDS))
  })

  it('breaks examples so that a shell still understands them', () => {
    const laidOut = layOut(
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

  it('goes on below what an option does', () => {
    expect(layOut(`Options:\n  --name NAME  ${'word '.repeat(20).trim()}`)).toBe(
      `Options:\n  --name NAME  ${'word '.repeat(13).trim()}\n               ${'word '.repeat(7).trim()}`,
    )
  })
})

describe('completion', () => {
  /** What bash itself offers after that line. */
  async function offered(line: string): Promise<string[]> {
    const { out: script } = await sluice(['completion', 'bash'])
    const words = line.split(' ').map((word) => `'${word}'`)
    const { stdout } = bash(
      `${script}\nCOMP_WORDS=(${words.join(' ')}); COMP_CWORD=${words.length - 1}; _sluice; printf '%s\\n' "\${COMPREPLY[@]}"`,
    )
    return stdout.trim().split('\n')
  }

  it('offers every command', async () => {
    expect(await offered('sluice ')).toEqual(names)
    expect(await offered('sluice --url http://127.0.0.1:1 dead')).toEqual(['dead-letters'])
  })

  it('offers the actions and the options of a command', async () => {
    expect(await offered('sluice keys ro')).toEqual(['rotate'])
    expect(await offered('sluice submit --pro')).toEqual(['--prompt'])
    expect(await offered('sluice jobs --he')).toEqual(['--help'])
  })

  it.each(['zsh', 'fish'])('names every command and option for %s', async (shell) => {
    const { out } = await sluice(['completion', shell])
    for (const [name, { options }] of Object.entries(COMMANDS)) {
      expect(out).toContain(name)
      for (const option of Object.keys(options)) expect(out).toContain(option)
    }
  })

  it('refuses other shells', async () => {
    const { code, err } = await sluice(['completion', 'tcsh'])
    expect(code).toBe(2)
    expect(err).toContain('tcsh: the shell is bash, zsh, fish.')
  })
})

function bash(script: string): { stdout: string } {
  return { stdout: execFileSync('bash', ['-c', script], { encoding: 'utf8' }) }
}
