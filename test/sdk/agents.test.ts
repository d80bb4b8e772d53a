import { describe, expect, it } from 'vitest'
import { AGENTS, OPENCODE_BY } from '../clients/agents/agents.ts'
import { APIS, failuresOf } from '../clients/agents/check.ts'
import { cacheDirectory, openAgent } from '../clients/environments.ts'

/*
 * Runs coding agents as real processes, configured as in docs/get-started/clients.md. The task has two parallel file reads, an edit, a command,
 * and a use of the agent's own web search or MCP tool. The first run installs about 1 GB from npm below the user's cache directory.
 */

/** Timeout of one run. An agent whose calls fail would otherwise retry for minutes. */
const RUN_MS = 150_000

/** Installs an agent. If that fails, then its tests are skipped; with CI=true the error is thrown instead, because a skip would hide the failure. */
async function findAgent(pin: string): Promise<{ directory: string; bin: string } | undefined> {
  try {
    return await openAgent(pin, cacheDirectory())
  } catch (error) {
    if (process.env.CI === 'true') throw error
    process.stderr.write(`skipped, no ${pin}: ${(error as Error).message.slice(0, 500)}\n`)
    return undefined
  }
}

const WITH_EVERY_CHANGE = ['codex', 'claude-code', 'opencode']

for (const agent of AGENTS.filter(({ name }) => WITH_EVERY_CHANGE.includes(name))) {
  const found = await findAgent(agent.package)
  const { bin, directory } = found ?? { bin: '', directory: '' }
  describe.skipIf(!found)(agent.package, () => {
    describe.each(Object.keys(agent.models))('the coding agent with the model %s', (model) => {
      it.each(APIS)(
        'completes a task with file reads, an edit and a command if the upstream serves the API %s',
        { timeout: RUN_MS },
        async (api) => {
          expect(await failuresOf(agent, bin, directory, api, model)).toEqual([])
        },
      )
    })

    if (agent.name !== 'opencode') return
    it.each(['messages', 'responses'] as const)(
      'completes a task with file reads, an edit and a command over the API %s',
      { timeout: RUN_MS },
      async (api) => {
        expect(await failuresOf(OPENCODE_BY[api], bin, directory, api, 'coder')).toEqual([])
      },
    )
  })
}
