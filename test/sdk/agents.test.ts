import { describe, expect, it } from 'vitest'
import { AGENTS, OPENCODE_BY } from '../clients/agents/agents.ts'
import { APIS, failuresOf } from '../clients/agents/check.ts'
import { cacheDirectory, openAgent } from '../clients/environments.ts'

/*
 * Coding agents as real processes, configured as in docs/get-started/clients.md. Task: two parallel reads, an edit, a command, and the agent's own web search or MCP tool. The first run installs about 1 GB from npm below the user's cache directory.
 */

/** An agent waits for minutes before it gives up a retry. */
const RUN_MS = 150_000

/** With CI=true the reason is thrown, because a skip would hide a failure. */
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
        'completes a task with file reads, an edit and a command on an upstream of the API %s',
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
