import { existsSync, readdirSync } from 'node:fs'
import { PageFile } from './files.ts'

/** Where `npm ci` has built the console (services/console/build.ts). */
const DIST = new URL('../../console/dist/', import.meta.url)

/** Where the console lies. */
export const CONSOLE = '/console'

/** The files of the console, by path. Names of assets have a hash, so they never change. Empty where it was not built. */
export function consoleFiles(): ReadonlyMap<string, PageFile> {
  const assets = new URL('assets/', DIST)
  if (!existsSync(assets)) return new Map()
  const files = readdirSync(assets).map((name): [string, PageFile] => {
    return [`${CONSOLE}/assets/${name}`, PageFile.at(new URL(name, assets), 'immutable')]
  })
  return new Map([[CONSOLE, PageFile.at(new URL('index.html', DIST))], ...files])
}

/** The file of an address in the console: every screen is one page, which looks at the address itself. */
export function findScreen(files: ReadonlyMap<string, PageFile>, path: string): PageFile | undefined {
  const isScreen = path.startsWith(`${CONSOLE}/`) && !path.startsWith(`${CONSOLE}/assets/`)
  return files.get(isScreen ? CONSOLE : path)
}
