"""Methods: how faithful is each method to what words and positions do?"""
