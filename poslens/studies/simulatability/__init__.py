"""Simulatability: do words chosen by a method help to predict a model's ranking?"""
