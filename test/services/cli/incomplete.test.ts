import { execFile } from 'node:child_process'
import { cp, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { emptyDirectory } from '../../support/processes/sluice.ts'

const ROOT = join(import.meta.dirname, '../../..')

it('the sluice command asks for npm ci if a dependency is not installed', async () => {
  const directory = await emptyDirectory()
  for (const part of ['services/cli', 'shared', 'schemas', 'package.json']) {
    await cp(join(ROOT, part), join(directory, part), { recursive: true, filter: (path) => !path.endsWith('/python') })
  }
  const running = promisify(execFile)(process.execPath, [join(directory, 'services/cli/sluice.js'), 'doctor'])
  await expect(running).rejects.toMatchObject({ code: 2, stderr: expect.stringMatching(/^sluice .* Run: npm ci\n$/) })
})

it('npm ci links the sluice command, so that npx starts it without a build of the project', async () => {
  expect(await readlink(join(ROOT, 'node_modules/.bin/sluice'))).toBe('../../services/cli/sluice.js')
})
