import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, it } from 'vitest'
import { consoleFiles, findScreen } from '#services/ingress/pages/files.ts'

it('the ingress serves the console files that it loaded at its start, even after a new build', async () => {
  const dist = mkdtempSync(join(tmpdir(), 'console-'))
  const build = (asset: string) => {
    rmSync(join(dist, 'assets'), { recursive: true, force: true })
    mkdirSync(join(dist, 'assets'))
    writeFileSync(join(dist, 'assets', asset), `// ${asset}`)
    writeFileSync(join(dist, 'index.html'), `<script src="/console/assets/${asset}">`)
  }
  build('index-1.js')
  const files = consoleFiles(pathToFileURL(`${dist}/`))
  build('index-2.js')
  const server = createServer((req, res) => void findScreen(files, req.url ?? '')?.send(req, res)).listen(
    0,
    '127.0.0.1',
  )
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const [, script = ''] = /src="([^"]+)"/.exec(await (await fetch(`${url}/console/jobs`)).text()) ?? []
  const asset = await fetch(url + script)
  expect(await asset.text()).toBe('// index-1.js')
  expect(asset.headers.get('cache-control')).toContain('immutable')
  rmSync(dist, { recursive: true })
  server.close()
  server.closeAllConnections()
})
