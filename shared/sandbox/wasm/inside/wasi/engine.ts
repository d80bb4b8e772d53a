/*
 * Types of Node's WebAssembly (WebAssembly JavaScript Interface). TypeScript declares these types only together with browser globals, so the needed
 * types are declared here.
 */

export interface Module {
  readonly [Symbol.toStringTag]: 'WebAssembly.Module'
}

export interface Memory {
  readonly buffer: ArrayBuffer
  grow(pages: number): number
}

interface WebAssembly {
  compile(bytes: Uint8Array<ArrayBuffer>): Promise<Module>
  readonly Instance: new (module: Module, imports: object) => { readonly exports: object }
}

export const { compile, Instance } = (globalThis as unknown as { WebAssembly: WebAssembly }).WebAssembly
